"""From a recorded run to a folder that people without Lockstep load with Transformers or PEFT."""
