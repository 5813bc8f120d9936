"""The trainers: SFT and PPO are siblings on a common floor."""
