"""How a guard (`pisco.networks.guards`) does its work in a round: distances, what they show, and who is named."""
