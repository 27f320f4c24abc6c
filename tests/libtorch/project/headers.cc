// Nothing: this is the target whose precompiled headers the others use.
