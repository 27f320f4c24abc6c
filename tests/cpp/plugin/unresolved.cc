// A shared library that lacks a function which nobody has.
extern "C" int hvl_test_nobody_has_this();
extern "C" __attribute__((visibility("default"))) int hvl_test_unresolved() {
  return hvl_test_nobody_has_this();
}
