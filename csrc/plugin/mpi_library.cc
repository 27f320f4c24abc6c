#include "csrc/plugin/mpi_library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include "csrc/base/str.h"
#include "csrc/plugin/open.h"

// An MPI program is compiled for one binary interface: what MPI_Comm is, and the values of
// constants. There are two in use, and one to come, so there is one plug-in for each of them. The
// plug-ins name no library they need, because the same interface has many file names (libmpi.so.40;
// libmpi.so.12, libmpich.so.12 and others). They take MPI's functions from what is visible in the
// process, as a program does that was linked to MPI; so the library is opened with RTLD_GLOBAL.

namespace hvl::plugin {
namespace {

namespace fs = std::filesystem;

// In the order in which they are looked for.
constexpr std::array<std::string_view, 4> kLibraryNames = {"libmpi.so.40", "libmpi.so.12",
                                                           "libmpich.so.12", "libmpi_abi.so.1"};
constexpr std::array<std::string_view, 3> kFamilies = {"openmpi", "mpich", "abi"};

Status NoMpi(std::string why) { return {StatusCode::kNotSupported, std::move(why)}; }

std::string PluginPath(const std::string& folder, std::string_view family) {
  return Format("{}/libhvl_mpi_{}.so", folder, family);
}

bool IsMpiLibrary(const fs::path& file) {
  const std::string name = file.filename();
  return name.starts_with("libmpi.so") || name.starts_with("libmpich.so") ||
         name.starts_with("libmpi_abi.so");
}

/// The MPI libraries that this process has loaded, as paths without symbolic links.
std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> found;
  const auto visit = [](dl_phdr_info* info, std::size_t, void* data) {
    const fs::path path = info->dlpi_name;
    if (IsMpiLibrary(path)) static_cast<std::vector<std::string>*>(data)->push_back(path);
    return 0;
  };
  ::dl_iterate_phdr(visit, &found);
  return found;
}

/// The process above `pid`, or 0.
int ParentOf(int pid) {
  std::ifstream status(Format("/proc/{}/status", pid));
  for (std::string word; status >> word;) {
    int parent = 0;
    if (word == "PPid:" && status >> parent) return parent;
  }
  return 0;
}

/// The library that was installed together with a program above this process: mpirun, or the agent
/// that it has on other hosts.
std::optional<std::string> LibraryOfLauncher() {
  constexpr int kMostParents = 16;
  int pid = ParentOf(::getpid());
  for (int step = 0; step < kMostParents && pid > 1; ++step, pid = ParentOf(pid)) {
    std::error_code error;
    const fs::path program = fs::read_symlink(Format("/proc/{}/exe", pid), error);
    if (error) continue;
    for (const char* folder : {"lib", "lib64"}) {
      for (const std::string_view name : kLibraryNames) {
        const fs::path file = program.parent_path().parent_path() / folder / name;
        if (fs::exists(file, error)) return file.string();
      }
    }
  }
  return std::nullopt;
}

std::string FamilyOf(void* handle, const fs::path& file) {
  if (file.filename().string().starts_with("libmpi_abi.so")) return "abi";
  return ::dlsym(handle, "ompi_mpi_comm_world") != nullptr ? "openmpi" : "mpich";
}

/// MPI_Get_library_version is the same in every binary interface, and may be asked at any time.
std::string VersionOf(void* handle) {
  using GetVersion = int (*)(char*, int*);
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(handle, "MPI_Get_library_version"));
  if (get_version == nullptr) return "unknown";
  constexpr std::size_t kMostBytes = 8192;  // MPI_MAX_LIBRARY_VERSION_STRING is at most this
  std::string text(kMostBytes, '\0');
  int length = 0;
  if (get_version(text.data(), &length) != 0 || length < 0) return "unknown";
  text.resize(std::min(text.find_first_of(std::string_view("\n\0", 2)), text.size()));
  std::ranges::replace(text, '\t', ' ');
  return text;
}

Result<MpiLibrary> OpenGlobally(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    return NoMpi(Format("the MPI library {} cannot be loaded: {}", path, LoaderError()));
  }
  if (::dlsym(handle, "MPI_Init_thread") == nullptr) {
    return NoMpi(Format("{} is no MPI library: it has no MPI_Init_thread", path));
  }
  link_map* map = nullptr;
  const bool named =
      ::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map->l_name[0] == '/';
  const std::string found = named ? map->l_name : path;
  return MpiLibrary{.family = FamilyOf(handle, found), .path = found, .version = VersionOf(handle)};
}

bool SameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || fs::equivalent(a, b, error);
}

/// A program may also have MPI in itself, without a file of that name.
bool ProgramHasMpi() { return ::dlsym(RTLD_DEFAULT, "MPI_Init_thread") != nullptr; }

}  // namespace

Result<MpiLibrary> OpenMpiLibrary(const std::string& wanted) {
  const std::vector<std::string> loaded = LoadedLibraries();
  if (loaded.size() > 1) {
    return NoMpi(
        Format("this process has loaded two MPI libraries, {} and {}; only one of them can "
               "work: import or link only one",
               loaded[0], loaded[1]));
  }
  if (loaded.size() == 1) {
    if (!wanted.empty() && !SameFile(wanted, loaded[0])) {
      return NoMpi(
          Format("HVL_MPI_LIBRARY={}, but this process has loaded {} already; only one MPI "
                 "can work in a process: set it to that, or leave it unset",
                 wanted, loaded[0]));
    }
    return OpenGlobally(loaded[0]);
  }
  if (!wanted.empty()) return OpenGlobally(wanted);
  if (ProgramHasMpi()) {
    return MpiLibrary{.family = FamilyOf(RTLD_DEFAULT, ""),
                      .path = "the program itself",
                      .version = VersionOf(RTLD_DEFAULT)};
  }
  if (const std::optional<std::string> neighbour = LibraryOfLauncher()) {
    return OpenGlobally(*neighbour);
  }
  std::string tried;
  for (const std::string_view name : kLibraryNames) {
    Result<MpiLibrary> library = OpenGlobally(std::string(name));
    if (library.ok()) return library;
    tried += Format("{}{}", tried.empty() ? "" : "; ", library.status().message());
  }
  return NoMpi(
      Format("no MPI library was found, neither in this process nor next to its launcher "
             "nor by the dynamic loader ({}); install one, or name its libmpi.so in "
             "HVL_MPI_LIBRARY",
             tried));
}

std::vector<std::string> MpiFamilies(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const std::string_view family : kFamilies) {
    if (fs::exists(PluginPath(folder, family), error)) found.emplace_back(family);
  }
  return found;
}

Result<Mpi*> OpenMpi(const std::string& folder, const std::string& wanted_library,
                     const Logger& logger) {
  const std::vector<std::string> built = MpiFamilies(folder);
  if (built.empty()) {
    return NoMpi(
        Format("this build of horovodlite has no plug-in for MPI (none in {}); install MPI "
               "with its headers (on Debian or Ubuntu libopenmpi-dev or libmpich-dev), "
               "then reinstall horovodlite from source",
               folder));
  }
  HVL_ASSIGN_OR_RETURN(const MpiLibrary library, OpenMpiLibrary(wanted_library));
  if (std::ranges::find(built, library.family) == built.end()) {
    std::string families;
    for (const std::string& family : built) families += (families.empty() ? "" : ", ") + family;
    return NoMpi(
        Format("the MPI here is {} ({}), which needs the plug-in {}, but this build has only "
               "{}; reinstall horovodlite from source where the mpicxx of that MPI is in "
               "PATH, or use the other MPI",
               library.path, library.version, PluginPath(folder, library.family), families));
  }
  HVL_LOG(logger, kDebug, "plugin", "mpi library={} family={} version={}", library.path,
          library.family, library.version);
  return Open<Mpi>(PluginPath(folder, library.family));
}

}  // namespace hvl::plugin
