"""The processes that run one model together: one leads, the others follow."""
