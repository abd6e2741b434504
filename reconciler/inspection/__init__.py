"""What commands show of a recorded fleet: typed replies, their sections, and lists."""
