// A shared library that is no plug-in.
extern "C" __attribute__((visibility("default"))) int hvl_test_stranger() { return 1; }
