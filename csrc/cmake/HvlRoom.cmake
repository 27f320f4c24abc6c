# Compiler settings shared by every target, and hvl_room(): one room = one static library that may
# use only the rooms it names (csrc/README.md has the map; tests/tidy checks the includes as well).

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(hvl_options INTERFACE)
target_compile_options(hvl_options INTERFACE -Wall -Wextra -Wshadow -Wconversion)
if(HVL_WERROR)
  target_compile_options(hvl_options INTERFACE -Werror)
endif()
# Sums must be the same on every machine and in every code path: no fused multiply-add behind our
# back.
target_compile_options(hvl_options INTERFACE -ffp-contract=off)
target_compile_definitions(hvl_options INTERFACE HVL_VERSION="${PROJECT_VERSION}")
target_include_directories(hvl_options INTERFACE ${PROJECT_SOURCE_DIR}
                                                 ${PROJECT_SOURCE_DIR}/csrc/include)
if(HVL_SANITIZE)
  # -O1 and lines only in the debug information: half the compiler's time, the same findings.
  target_compile_options(hvl_options INTERFACE -fsanitize=${HVL_SANITIZE} -fno-sanitize-recover=all
                                               -fno-omit-frame-pointer -O1 -g1)
  target_link_options(hvl_options INTERFACE -fsanitize=${HVL_SANITIZE})
endif()

# hvl_room(<name> SOURCES <file>... [USES <room>...] [LINKS <library>...])
function(hvl_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;USES;LINKS" ${ARGN})
  add_library(hvl_${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(hvl_${name} PUBLIC hvl_options Threads::Threads)
  foreach(used IN LISTS ROOM_USES)
    target_link_libraries(hvl_${name} PUBLIC hvl_${used})
  endforeach()
  target_link_libraries(hvl_${name} PUBLIC ${ROOM_LINKS})
endfunction()

# What is looked for is in the rooms: the checks of the undefined-behaviour sanitizer in the tests'
# own code would be a third of the compiler's time.
set(HVL_TEST_OPTIONS "")
set(HVL_TEST_TIMEOUT 600)
if(HVL_SANITIZE)
  set(HVL_TEST_OPTIONS -fno-sanitize=undefined)
  set(HVL_TEST_TIMEOUT 1500)
endif()

# hvl_joined(<variable> <file>...): files that hold these tests, up to twelve each, so that the
# headers and templates that they share are compiled once. Each test is moved into a namespace of
# its own, as others have helpers of its names. What is no test is passed on as it is.
function(hvl_joined variable)
  set(tests ${ARGN})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(files ${ARGN})
  list(FILTER files EXCLUDE REGEX "_test\\.cc$")
  while(tests)
    list(SUBLIST tests 0 12 together)
    list(REMOVE_ITEM tests ${together})
    set(text "")
    foreach(file IN LISTS together)
      cmake_path(ABSOLUTE_PATH file OUTPUT_VARIABLE path)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
      file(READ ${path} content)
      string(MAKE_C_IDENTIFIER ${file} own)
      string(REGEX REPLACE "(^|\n)(namespace hvl[a-z_:]*) {\n" "\\1\\2::${own} {\n"
                           content "${content}")
      file(RELATIVE_PATH shown ${PROJECT_SOURCE_DIR} ${path})  # so that ccache knows it anywhere
      string(APPEND text "#line 1 \"${shown}\"\n${content}")
    endforeach()
    string(SHA1 name "${together}")
    set(joined ${CMAKE_CURRENT_BINARY_DIR}/joined_${name}.cc)
    file(CONFIGURE OUTPUT ${joined} CONTENT "${text}" @ONLY)
    list(APPEND files ${joined})
  endwhile()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# hvl_test(<room> SOURCES <file>... [USES <room>...] [LINKS <library>...]): one Catch2 executable
# per room, listed in CTest.
function(hvl_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;USES;LINKS" ${ARGN})
  if(HVL_SANITIZE)
    hvl_joined(TEST_SOURCES ${TEST_SOURCES})
  endif()
  add_executable(${name}_test ${TEST_SOURCES})
  target_compile_options(${name}_test PRIVATE ${HVL_TEST_OPTIONS})
  target_link_libraries(${name}_test PRIVATE hvl_options hvl_silent_tests Catch2::Catch2WithMain
                                              ${TEST_LINKS})
  foreach(used IN LISTS TEST_USES)
    target_link_libraries(${name}_test PRIVATE hvl_${used})
  endforeach()
  add_test(NAME ${name} COMMAND ${name}_test --order rand --rng-seed time)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${HVL_TEST_TIMEOUT})
endfunction()
