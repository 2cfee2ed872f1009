"""The dashboard: one page that shows what the streams and consumers of any JetStream server are doing."""
