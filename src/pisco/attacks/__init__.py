"""What somebody who sees an agent's messages can learn of its samples: to show what privacy buys, and on what."""
