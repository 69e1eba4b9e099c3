"""Pure mathematics: schedule, solvers, loss, advantage, old policy, randomness. No I/O, no logging."""
