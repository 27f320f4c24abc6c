# Looks for everything that comes from Debian packages before anything is compiled, so that what is
# missing is one message with its cure.

set(HVL_MISSING "")

# hvl_require(<header> <package>): the header must be found by the compiler's usual means.
function(hvl_require header package)
  string(MAKE_C_IDENTIFIER "HVL_FOUND_${header}" found)
  find_path(${found} ${header})
  if(NOT ${found})
    set(HVL_MISSING "${HVL_MISSING}  ${header} (package ${package})\n" PARENT_SCOPE)
  endif()
endfunction()

hvl_require(fmt/core.h libfmt-dev)
hvl_require(openssl/hmac.h libssl-dev)
if(HVL_BUILD_LAUNCHER)
  hvl_require(CLI/CLI.hpp libcli11-dev)
endif()
if(HVL_BUILD_TESTS)
  hvl_require(catch2/catch.hpp catch2)
endif()
# The static libcrypto: a wheel must run where no OpenSSL package is.
find_library(HVL_LIBCRYPTO NAMES libcrypto.a)
if(NOT HVL_LIBCRYPTO)
  string(APPEND HVL_MISSING "  libcrypto.a (package libssl-dev)\n")
endif()

if(HVL_MISSING)
  file(STRINGS ${CMAKE_SOURCE_DIR}/csrc/cmake/packages.txt rows REGEX "^build ")
  list(TRANSFORM rows REPLACE "^build +([^ ]+).*" "\\1")
  list(JOIN rows " " packages)
  message(FATAL_ERROR "horovodlite cannot be built here, because these are missing:\n"
                      "${HVL_MISSING}On Debian or Ubuntu this installs them:\n"
                      "  apt-get install ${packages}\n")
endif()

set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(Threads REQUIRED)
if(HVL_BUILD_PYTHON)
  set(PYBIND11_FINDPYTHON ON)
  find_package(Python 3.9 REQUIRED COMPONENTS Interpreter Development.Module)
  find_package(pybind11 2.13 CONFIG REQUIRED)
endif()
