# Rooms: the parts of src/, declared lowest first.
#
#   ullage_room(<name> SOURCES <file>... [DEPS <room>...] [LIBS <target>...] [TORCH])
#
# A room is an object library, so that static registrations (TORCH_LIBRARY_IMPL)
# are never dropped by the linker. DEPS may name only rooms declared earlier:
# the order of the add_subdirectory() calls in src/ is the layering.
# TORCH lets the room see the torch headers; a room without it cannot include them.

function(ullage_common_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE fmt::fmt nlohmann_json::nlohmann_json)
  target_compile_definitions(${target} PRIVATE AT_PER_OPERATOR_HEADERS)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${ULLAGE_WERROR}>>:-Werror>)
endfunction()

function(ullage_room name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS;LIBS" ${ARGN})
  set(closure "")
  foreach(dep IN LISTS ARG_DEPS)
    if(NOT TARGET ullage_${dep})
      message(FATAL_ERROR "room '${name}' depends on '${dep}', which is not below it")
    endif()
    get_property(below GLOBAL PROPERTY ULLAGE_CLOSURE_${dep})
    list(APPEND closure ${below} ${dep})
  endforeach()
  list(REMOVE_DUPLICATES closure)
  set_property(GLOBAL PROPERTY ULLAGE_CLOSURE_${name} "${closure}")
  set_property(GLOBAL APPEND PROPERTY ULLAGE_ROOMS ${name})

  add_library(ullage_${name} OBJECT ${ARG_SOURCES})
  ullage_common_settings(ullage_${name})
  set(with_torch ${ARG_TORCH})
  foreach(dep IN LISTS ARG_DEPS)
    get_property(dep_torch GLOBAL PROPERTY ULLAGE_TORCH_${dep})
    if(dep_torch)
      set(with_torch TRUE)
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY ULLAGE_TORCH_${name} ${with_torch})
  if(ARG_TORCH)
    target_link_libraries(ullage_${name} PRIVATE ullage::torch)
  endif()
  target_link_libraries(ullage_${name} PUBLIC ${ARG_LIBS})  # PUBLIC: the binaries link them too
  if(ULLAGE_WITH_CUDA AND "${ARG_SOURCES}" MATCHES "\\.cu(;|$)")
    target_link_libraries(ullage_${name} PRIVATE ullage::cudart)
    set_target_properties(ullage_${name} PROPERTIES CUDA_VISIBILITY_PRESET hidden)
    # By flag: CMake 3.25 does not know that nvcc has C++20, and then ignores CUDA_STANDARD.
    target_compile_options(ullage_${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
  endif()
endfunction()

# One test binary and one ctest entry per room: loading libtorch costs 0.25 s a process with the
# CPU libraries and 0.45 s with libtorch_cuda (2.11). A room with no torch below it loads none.
# It links the room and the rooms below it, nothing else, so an upward call fails to link.
function(ullage_room_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LABELS" ${ARGN})
  get_property(closure GLOBAL PROPERTY ULLAGE_CLOSURE_${name})
  add_executable(${name}_test ${ARG_SOURCES})
  ullage_common_settings(${name}_test)
  if(ULLAGE_PCH AND name IN_LIST ULLAGE_PCH_ROOMS)
    target_precompile_headers(${name}_test REUSE_FROM ullage_test_pch)
  endif()
  foreach(room IN LISTS closure ITEMS ${name})
    target_link_libraries(${name}_test PRIVATE ullage_${room})
  endforeach()
  get_property(with_torch GLOBAL PROPERTY ULLAGE_TORCH_${name})
  if(with_torch)
    target_link_libraries(${name}_test PRIVATE ullage::torch)
  endif()
  target_link_libraries(${name}_test PRIVATE ullage_test_support GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name}_test)
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 900
    ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()
