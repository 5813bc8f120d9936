"""The checkpoint store: written whole or not at all, verified before it is believed, for SFT and PPO alike."""
