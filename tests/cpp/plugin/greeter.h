// The interface of the plug-ins that the tests open.
#pragma once

#include <string>

namespace hvl::plugin::test {

class Greeter {
 public:
  static constexpr const char* kInterface = "greeter";
  virtual ~Greeter() = default;
  virtual std::string Greet(const std::string& name) const = 0;
};

}  // namespace hvl::plugin::test
