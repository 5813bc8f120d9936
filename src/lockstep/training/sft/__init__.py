"""Supervised fine-tuning: TRL's trainer on a model that Transformers sharded, with our store, stop and curves."""
