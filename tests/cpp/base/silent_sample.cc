// What hvl_test() must not accept.
#include <catch2/catch.hpp>

TEST_CASE("this test asserts nothing") {}
