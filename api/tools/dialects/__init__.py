"""The formats in which models write calls: a parser and a grammar for each."""
