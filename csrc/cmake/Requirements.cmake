# Looks for everything that comes from Debian packages before anything is compiled, so that what is
# missing is one message with its cure.
include(CheckCXXSourceCompiles)

set(HVL_MISSING "")

# hvl_require(<header> <package>): the header must be found by the compiler's usual means.
function(hvl_require header package)
  string(MAKE_C_IDENTIFIER "HVL_FOUND_${header}" found)
  find_path(${found} ${header})
  if(NOT ${found})
    set(HVL_MISSING "${HVL_MISSING}  ${header} (package ${package})\n" PARENT_SCOPE)
  endif()
endfunction()

set(CMAKE_REQUIRED_FLAGS -std=c++20)
check_cxx_source_compiles(
  "#include <semaphore>\n#include <span>\n#include <thread>\nint main() { std::jthread t([] {}); }"
  HVL_HAS_CXX20)
unset(CMAKE_REQUIRED_FLAGS)
if(NOT HVL_HAS_CXX20)
  string(APPEND HVL_MISSING "  a C++20 compiler; ${CMAKE_CXX_COMPILER} "
                            "${CMAKE_CXX_COMPILER_VERSION} is none (package g++, 11 or later)\n")
endif()
hvl_require(fmt/core.h libfmt-dev)
hvl_require(openssl/hmac.h libssl-dev)
hvl_require(nlohmann/json.hpp nlohmann-json3-dev)
# The static libcrypto: a wheel must run where no OpenSSL package is.
find_library(HVL_LIBCRYPTO NAMES libcrypto.a)
if(NOT HVL_LIBCRYPTO)
  string(APPEND HVL_MISSING "  libcrypto.a (package libssl-dev)\n")
endif()
if(HVL_BUILD_LAUNCHER)
  hvl_require(CLI/CLI.hpp libcli11-dev)
  hvl_require(yaml-cpp/yaml.h libyaml-cpp-dev)
  find_library(HVL_YAML_CPP NAMES libyaml-cpp.a)  # static for the same reason
  if(NOT HVL_YAML_CPP)
    string(APPEND HVL_MISSING "  libyaml-cpp.a (package libyaml-cpp-dev)\n")
  endif()
endif()
if(HVL_BUILD_PYTHON)
  find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
  if(NOT Python_Development.Module_FOUND)
    string(APPEND HVL_MISSING "  Python.h of Python 3.9 or later (package python3-dev)\n")
  endif()
endif()
set(sections build)
if(HVL_BUILD_TESTS)
  set(sections "build|dev")
  hvl_require(catch2/catch.hpp catch2)
endif()

if(HVL_MISSING)
  file(STRINGS ${PROJECT_SOURCE_DIR}/csrc/cmake/packages.txt rows REGEX "^(${sections}) ")
  list(TRANSFORM rows REPLACE "^[a-z]+ +([^ ]+).*" "\\1")
  list(JOIN rows " " packages)
  message(FATAL_ERROR "horovodlite cannot be built here, because these are missing:\n"
                      "${HVL_MISSING}On Debian or Ubuntu this installs all that is needed:\n"
                      "  apt-get install -y ${packages}\n")
endif()

# Static: neither a wheel nor hvlrun depends on the machine's OpenSSL.
set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(Threads REQUIRED)
if(HVL_BUILD_PYTHON)
  set(PYBIND11_FINDPYTHON ON)
  find_package(pybind11 2.13 CONFIG REQUIRED)
endif()
