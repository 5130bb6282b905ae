"""For tests and the self-check: the cheaters, their honest twins, a scripted author. Nothing imports it."""
