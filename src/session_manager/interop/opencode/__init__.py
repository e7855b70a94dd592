"""OpenCode sessions, in and out: import, live mirror, export. See docs/opencode.md."""
