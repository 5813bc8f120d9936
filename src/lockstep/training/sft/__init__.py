"""Supervised fine-tuning: TRL trains, Transformers shards, our store saves."""
