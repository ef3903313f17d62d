"""A server of the log service's wire protocol, for tests only: no such service can run here.

It speaks HTTP on the loopback as the service's API reference and SDK describe it: signatures of
both versions are checked, bodies are protobuf under lz4, zstd or deflate, errors carry the
documented codes, shards are split and merged, retention removes LogGroups and moves a cursor that
points at them forward without a word, and consumer groups keep checkpoints and holders. The real
SDK is its only client. It shares no code with the SDK or with the source that it tests.
"""
