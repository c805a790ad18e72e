"""The messages, compiled from the .proto files beside them: see `make protos`."""
