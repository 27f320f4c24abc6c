#include "csrc/plugin/open.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>

#include "csrc/base/str.h"

namespace hvl::plugin {
namespace {

constexpr const char* kEntryName = "hvl_plugin_entry";
constexpr const char* kCure = "plug-ins come with the core they belong to: reinstall horovodlite";

Status Unusable(const std::string& path, std::string_view why) {
  return {StatusCode::kNotSupported, Format("the plug-in {} cannot be used: {}", path, why)};
}

}  // namespace

std::string LoaderError() {
  const char* const text = ::dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc
  return text == nullptr ? "the dynamic loader does not say why" : text;
}

const char* BuildVersion() { return HVL_PLUGIN_VERSION; }

// The loader knows the program itself by no name, or by the one that it was called by.
std::string DefaultFolder() {
  Dl_info info{};
  link_map* map = nullptr;
  const auto* const own_code = reinterpret_cast<const void*>(&DefaultFolder);
  const bool found =
      ::dladdr1(own_code, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0;
  const bool is_library = found && map->l_name[0] != '\0';
  std::error_code error;
  const std::filesystem::path file = is_library
                                         ? std::filesystem::absolute(map->l_name, error)
                                         : std::filesystem::read_symlink("/proc/self/exe", error);
  return (file.parent_path() / "plugins").string();
}

// RTLD_LOCAL: plug-ins and the core contain the same functions under the same names, and each is to
// use its own. Never closed: a library with threads and exit handlers cannot be taken out.
Result<void*> OpenFile(const std::string& path, std::string_view interface) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Unusable(path, Format("{}; {}", LoaderError(), kCure));
  using Entry = const Exported* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(handle, kEntryName));
  if (entry == nullptr) {
    return Unusable(path, Format("it is no plug-in of horovodlite ({}); {}", LoaderError(), kCure));
  }
  const Exported* const exported = entry();
  if (std::string_view(exported->version) != BuildVersion()) {
    return Unusable(path, Format("it was built for horovodlite {}, and this is {}; {}",
                                 exported->version, BuildVersion(), kCure));
  }
  if (std::string_view(exported->interface) != interface) {
    return Unusable(path, Format("it offers '{}', and '{}' was wanted; {}", exported->interface,
                                 interface, kCure));
  }
  return exported->object;
}

}  // namespace hvl::plugin
