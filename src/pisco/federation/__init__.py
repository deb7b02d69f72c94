"""Real federations: the plan everybody holds, the authority that signs certificates, and one agent's kit."""
