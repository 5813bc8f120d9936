"""Where weights come from: loading (sharded or quantised), precision, adapters, export."""
