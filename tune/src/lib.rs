//! Placement: cores, nodes, and what is wrong with them.
