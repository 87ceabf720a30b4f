"""Many processes: Ray places and watches them, FSDP2 spreads the policy over them."""
