"""LoRA-PPO on one backbone with four roles."""
