//! The tour of the README with the Rust SDK: create, watch, append, stream a reply, read, fork, list.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use iii_sdk::iii::{IIIClient, WorkerMetadata};
use iii_sdk::protocol::{RegisterTriggerInput, TriggerRequest};
use iii_sdk::{register_worker, Error, InitOptions, RegisterFunction};
use serde_json::{json, Value};
use tokio::sync::Notify;

const NAME: &str = "rust-tour";

type Events = Arc<Mutex<Vec<Value>>>;

async fn call(iii: &IIIClient, function_id: &str, payload: Value) -> Result<Value, Error> {
    iii.trigger(TriggerRequest::new(function_id, payload)).await
}

fn text(words: &str) -> Value {
    json!([{"type": "text", "text": words}])
}

fn id(reply: &Value, key: &str) -> String {
    reply[key].as_str().unwrap_or_default().to_string()
}

#[allow(deprecated)] // 0.26 replaces trigger types by `observe`
fn listen(
    iii: &IIIClient,
    name: &str,
    kind: &str,
    config: Value,
    last: u64,
    finished: Arc<Notify>,
) -> Result<Events, Error> {
    let events = Events::default();
    let kept = events.clone();
    let function_id = format!("{NAME}::{name}");
    iii.register_function(
        function_id.as_str(),
        RegisterFunction::new_async(move |event: Value| {
            if event["revision"].as_u64() == Some(last) {
                finished.notify_one();
            }
            kept.lock().unwrap().push(event);
            async { Ok::<_, Error>(Value::Null) }
        }),
    );
    iii.register_trigger(RegisterTriggerInput::new(kind, function_id, config))?;
    Ok(events)
}

fn told(events: &Events, of: impl Fn(&Value) -> Value) -> Vec<Value> {
    events.lock().unwrap().iter().map(of).collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("the engine's URL is missing")?;
    let last: u64 = arguments
        .next()
        .ok_or("the number of updates is missing")?
        .parse()?;
    let metadata = Some(WorkerMetadata {
        name: NAME.to_string(),
        ..Default::default()
    });
    let iii = register_worker(
        &url,
        InitOptions {
            metadata,
            ..Default::default()
        },
    );
    let owner = json!({"owner": NAME});

    let made = call(
        &iii,
        "session::create",
        json!({"title": "Tour", "metadata": owner}),
    )
    .await?;
    let session_id = id(&made, "session_id");

    let finished = Arc::new(Notify::new());
    let one = json!({"session_id": session_id, "roles": ["assistant"]});
    let added = listen(
        &iii,
        "added",
        "session::message-added",
        one,
        u64::MAX,
        finished.clone(),
    )?;
    let mine = json!({"metadata": owner});
    let updated = listen(
        &iii,
        "updated",
        "session::message-updated",
        mine,
        last,
        finished.clone(),
    )?;
    let nobodys = json!({"metadata": {"owner": "nobody"}});
    let elsewhere = listen(
        &iii,
        "elsewhere",
        "session::message-updated",
        nobodys,
        u64::MAX,
        finished.clone(),
    )?;
    loop {
        // The bindings are made when the engine lists them.
        let listed = call(
            &iii,
            "engine::registered-triggers::list",
            json!({"search": format!("{NAME}::")}),
        )
        .await?;
        if listed["registered_triggers"].as_array().map(Vec::len) == Some(3) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let question =
        json!({"role": "user", "content": text("How far is Oslo from Bergen?"), "timestamp": 1});
    let append = json!({"session_id": session_id, "message": question});
    let asked = id(&call(&iii, "session::append", append).await?, "entry_id");
    let empty = json!({
        "role": "assistant", "content": [], "stop_reason": "end", "model": "m", "provider": "p", "timestamp": 2});
    let append = json!({"session_id": session_id, "message": empty});
    let reply = id(&call(&iii, "session::append", append).await?, "entry_id");
    let mut words = String::new();
    for revision in 1..=last {
        words += &format!("{revision} ");
        let update = json!({
            "session_id": session_id, "entry_id": reply, "content": text(&words), "expected_revision": revision - 1});
        call(&iii, "session::update-message", update).await?;
    }
    let heard_last = tokio::time::timeout(Duration::from_secs(15), finished.notified())
        .await
        .is_ok();
    let late =
        json!({"session_id": session_id, "entry_id": reply, "content": [], "expected_revision": 1});
    let stale = call(&iii, "session::update-message", late).await?;

    let page = call(&iii, "session::messages", json!({"session_id": session_id})).await?;
    let branch = json!({"session_id": session_id, "entry_id": asked, "title": "Another plan"});
    let fork = id(&call(&iii, "session::fork", branch).await?, "session_id");
    let listed = call(&iii, "session::list", json!({"metadata": owner})).await?;
    let refused = match call(
        &iii,
        "session::append",
        json!({"session_id": "nobody", "message": question}),
    )
    .await
    {
        Err(Error::Remote { message, .. }) => message,
        other => format!("{other:?}"),
    };

    let none = Vec::new();
    println!(
        "{}",
        json!({
            "session_id": session_id, "asked": asked, "reply": reply, "words": words, "heard_last": heard_last,
            "stale": stale, "fork": fork, "refused": refused,
            "added": told(&added, |event| json!([event["entry_id"], event["message"]["role"]])),
            "revisions": told(&updated, |event| event["revision"].clone()),
            "words_heard": updated.lock().unwrap().last().map(|event| event["message"]["content"][0]["text"].clone()),
            "elsewhere": elsewhere.lock().unwrap().len(),
            "page": page["messages"].as_array().unwrap_or(&none).iter()
                .map(|item| json!([item["entry_id"], item["message"]["content"][0]["text"]])).collect::<Vec<_>>(),
            "listed": listed["sessions"].as_array().unwrap_or(&none).iter()
                .map(|meta| meta["session_id"].clone()).collect::<Vec<_>>(),
        })
    );
    iii.shutdown();
    Ok(())
}
