// A plug-in, built several times: HVL_TEST_VERSION and HVL_TEST_INTERFACE say as what.
#include "tests/cpp/plugin/greeter.h"

#include "csrc/plugin/exported.h"

namespace hvl::plugin::test {
namespace {

class GreeterImpl final : public Greeter {
 public:
  std::string Greet(const std::string& name) const override { return "hello, " + name; }
};

}  // namespace
}  // namespace hvl::plugin::test

HVL_PLUGIN_ENTRY() {
  static hvl::plugin::test::GreeterImpl greeter;
  static const hvl::plugin::Exported exported = {
      .version = HVL_TEST_VERSION,
      .interface = HVL_TEST_INTERFACE,
      .object = static_cast<hvl::plugin::test::Greeter*>(&greeter)};
  return &exported;
}
