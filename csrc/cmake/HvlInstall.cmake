# What is installed, and where. The same folder twice, under two names: as horovodlite/ in the
# Python package (`cmake --install . --component package --prefix P`), and as lib/horovodlite/ for
# C++ (`cmake --install . --prefix P`), without what only Python can use.
#
#   libhorovodlite.so.<version>  plugins/  bin/hvlrun
#   include/                     the public headers
#   src/                         the part for LibTorch, which is compiled by those who use it
#   cmake/                       for find_package(horovodlite)
#
# The library finds its plug-ins beside itself, and hvlrun beside its folder.
include(CMakePackageConfigHelpers)

set(package_folder horovodlite)
set(package_options COMPONENT package EXCLUDE_FROM_ALL)
set(cpp_folder lib/horovodlite)
set(cpp_options COMPONENT cpp)

# hvl_install_target(<target> <subfolder> [PYTHON_ONLY])
function(hvl_install_target target subfolder)
  add_dependencies(hvl_package ${target})
  if(HVL_STATIC_RUNTIME AND NOT target STREQUAL horovodlite_shared)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  foreach(place IN ITEMS package cpp)
    if(place STREQUAL package OR NOT "PYTHON_ONLY" IN_LIST ARGN)
      set(folder ${${place}_folder}/${subfolder})
      install(TARGETS ${target} ${${place}_options} LIBRARY DESTINATION ${folder}
                                                    RUNTIME DESTINATION ${folder})
    endif()
  endforeach()
endfunction()

get_property(plugins GLOBAL PROPERTY HVL_PLUGINS)
foreach(shipped IN ITEMS _core hvlrun ${plugins})
  if(TARGET ${shipped})
    # Nothing of the libraries linked statically is visible to the rest of the process.
    target_link_options(${shipped} PRIVATE -Wl,--exclude-libs,ALL -Wl,--gc-sections)
  endif()
endforeach()
if(TARGET _core)
  hvl_install_target(_core . PYTHON_ONLY)
endif()
hvl_install_target(horovodlite_shared .)
foreach(plugin IN LISTS plugins)
  hvl_install_target(${plugin} plugins)
endforeach()
if(TARGET hvlrun)
  hvl_install_target(hvlrun bin)
  install(CODE "
    set(bin \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin\")
    file(MAKE_DIRECTORY \"\${bin}\")
    file(CREATE_LINK ../lib/horovodlite/bin/hvlrun \"\${bin}/hvlrun\" SYMBOLIC)"
    COMPONENT cpp)
endif()

# The user's C++ library has one ABI of std::string, and this library was built for one.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("
  #include <string>
  #if !_GLIBCXX_USE_CXX11_ABI
  #error
  #endif
  int main() {}" HVL_CXX11_ABI)
if(HVL_CXX11_ABI)
  set(HVL_CXX11_ABI 1)
else()
  set(HVL_CXX11_ABI 0)
endif()
get_property(HVL_TORCH_FILES GLOBAL PROPERTY HVL_TORCH_FILES)
set(HVL_TORCH_SOURCES ${HVL_TORCH_FILES})
list(FILTER HVL_TORCH_SOURCES INCLUDE REGEX "[.]cc$")
list(TRANSFORM HVL_TORCH_SOURCES REPLACE "^.*/" "")
set(config ${PROJECT_BINARY_DIR}/cmake)
configure_file(${PROJECT_SOURCE_DIR}/csrc/cmake/horovodliteConfig.cmake.in
               ${config}/horovodliteConfig.cmake @ONLY)
write_basic_package_version_file(${config}/horovodliteConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
set(public csrc/include csrc/torch/include)
foreach(place IN ITEMS package cpp)
  set(folder ${${place}_folder})
  install(DIRECTORY ${config}/ ${${place}_options} DESTINATION ${folder}/cmake)
  foreach(headers IN LISTS public)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${headers}/ ${${place}_options}
            DESTINATION ${folder}/include)
  endforeach()
  install(FILES ${HVL_TORCH_FILES} ${${place}_options} DESTINATION ${folder}/src/csrc/torch)
endforeach()
