# Finds the torch that pip installed, without torch's own CMake package.
#
#   TORCH_WHEEL_DIR   (cache) the folder .../site-packages/torch. Empty: taken from a
#                     CMAKE_PREFIX_PATH entry ending in torch/share/cmake, else from the torch
#                     that Python3_EXECUTABLE (default: python3 on PATH) would import.
#   ULLAGE_CUDA       (cache) ON, OFF or AUTO. AUTO is ON when the wheel has libtorch_cuda and
#                     nvcc is found. ON stops the configure step when either is absent.
#
# Leaves: ullage::torch (headers, libc10, libtorch_cpu; with CUDA also libc10_cuda, libtorch_cuda,
# the wheel's cudart), ullage::torch_python, and TORCH_WHEEL_{DIR,VERSION,CUDA_VERSION,HAS_CUDA},
# ULLAGE_WITH_CUDA, ULLAGE_WITH_NCCL.
#
# Why not find_package(Torch): against a CUDA wheel it needs a full toolkit even to build CPU code,
# and it replaces CMAKE_CUDA_ARCHITECTURES by OFF and CMAKE_CUDA_FLAGS by gencode flags for
# architectures that nvcc 13 refuses (compute_50, compute_101a).

set(TORCH_WHEEL_DIR "" CACHE PATH "The site-packages/torch folder; empty: search")
set(ULLAGE_CUDA OFF CACHE STRING "Build the CUDA parts: ON, OFF or AUTO")
set_property(CACHE ULLAGE_CUDA PROPERTY STRINGS AUTO ON OFF)

set(dir "${TORCH_WHEEL_DIR}")
if(NOT dir)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    string(REGEX REPLACE "/share/cmake/?$" "" prefix "${prefix}")
    if(EXISTS "${prefix}/lib/libtorch_cpu.so" AND EXISTS "${prefix}/version.py")
      set(dir "${prefix}")
    endif()
  endforeach()
endif()
if(NOT dir)
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  execute_process(  # find_spec does not import torch: 0.05 s instead of 3 s
    COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS "${dir}/lib/libtorch_cpu.so" OR NOT EXISTS "${dir}/version.py")
  message(FATAL_ERROR "no torch wheel at '${dir}': set TORCH_WHEEL_DIR or Python3_EXECUTABLE")
endif()
file(REAL_PATH "${dir}" dir)
set(TORCH_WHEEL_DIR "${dir}")

file(READ "${dir}/version.py" text)
string(REGEX MATCH "__version__ = '([0-9]+\\.[0-9]+\\.[0-9]+)" match "${text}")
set(TORCH_WHEEL_VERSION "${CMAKE_MATCH_1}")
set(TORCH_WHEEL_CUDA_VERSION "")
if(text MATCHES "\ncuda[^=\n]*= '([0-9.]+)'")
  set(TORCH_WHEEL_CUDA_VERSION "${CMAKE_MATCH_1}")
endif()
if(TORCH_WHEEL_VERSION VERSION_LESS 2.7)
  message(FATAL_ERROR "torch ${TORCH_WHEEL_VERSION} is too old: 2.7 is the first whose wheels all use the C++11 ABI")
endif()

set(TORCH_WHEEL_HAS_CUDA FALSE)
if(EXISTS "${dir}/lib/libtorch_cuda.so")
  set(TORCH_WHEEL_HAS_CUDA TRUE)
endif()

set(ULLAGE_WITH_CUDA FALSE)
if(NOT ULLAGE_CUDA STREQUAL "OFF")
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 86 89 90)  # before enable_language, which sets its own default
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER AND TORCH_WHEEL_HAS_CUDA)
    set(ULLAGE_WITH_CUDA TRUE)
  elseif(ULLAGE_CUDA STREQUAL "AUTO")
    message(STATUS "ULLAGE_CUDA=AUTO: off (libtorch_cuda: ${TORCH_WHEEL_HAS_CUDA}, nvcc: ${CMAKE_CUDA_COMPILER})")
  else()
    message(FATAL_ERROR "ULLAGE_CUDA=ON needs a CUDA torch wheel (libtorch_cuda: ${TORCH_WHEEL_HAS_CUDA}) and nvcc (${CMAKE_CUDA_COMPILER})")
  endif()
endif()

# Forces a library into the NEEDED list: its operators register themselves when it is loaded, so
# no symbol refers to it, and Ubuntu's g++ links with --as-needed.
set(CMAKE_LINK_LIBRARY_USING_ullage_needed "LINKER:--push-state,--no-as-needed" "<LINK_ITEM>" "LINKER:--pop-state")
set(CMAKE_LINK_LIBRARY_USING_ullage_needed_SUPPORTED TRUE)

function(ullage_import_wheel_lib name file)
  add_library(ullage::${name} SHARED IMPORTED GLOBAL)
  get_filename_component(soname "${file}" NAME)
  set_target_properties(ullage::${name} PROPERTIES IMPORTED_LOCATION "${file}" IMPORTED_SONAME "${soname}")
endfunction()

ullage_import_wheel_lib(c10 "${dir}/lib/libc10.so")
ullage_import_wheel_lib(torch_cpu "${dir}/lib/libtorch_cpu.so")
add_library(ullage::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(ullage::torch SYSTEM INTERFACE
  "${dir}/include" "${dir}/include/torch/csrc/api/include")
# The wheel ships fmt's headers, of another version than the system's library, and they come first.
target_compile_definitions(ullage::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO FMT_HEADER_ONLY=1)
target_link_libraries(ullage::torch INTERFACE
  "$<LINK_LIBRARY:ullage_needed,ullage::torch_cpu>" ullage::c10)
if(NOT EXISTS "${dir}/include/gloo/context.h")
  target_include_directories(ullage::torch SYSTEM INTERFACE "${PROJECT_SOURCE_DIR}/src/comm/gloo_shim")
endif()

set(ULLAGE_WITH_NCCL FALSE)
if(ULLAGE_WITH_CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # else CMake adds cudart_static: a second runtime beside torch's
  enable_language(CUDA)
  string(REGEX MATCH "^[0-9]+" nvcc_major "${CMAKE_CUDA_COMPILER_VERSION}")
  string(REGEX MATCH "^[0-9]+" wheel_major "${TORCH_WHEEL_CUDA_VERSION}")
  if(NOT nvcc_major STREQUAL wheel_major)
    message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} cannot build against a torch for CUDA ${TORCH_WHEEL_CUDA_VERSION}")
  endif()
  set(site "${dir}/../nvidia")
  # cu13 wheels share one folder, cu12 wheels have one for each component.
  file(GLOB cudart "${site}/cu*/lib/libcudart.so.*" "${site}/cuda_runtime/lib/libcudart.so.*")
  if(cudart)
    list(GET cudart 0 cudart)
    file(REAL_PATH "${cudart}" cudart)
    ullage_import_wheel_lib(cudart "${cudart}")
  else()
    find_package(CUDAToolkit REQUIRED)
    add_library(ullage::cudart ALIAS CUDA::cudart)
  endif()
  ullage_import_wheel_lib(c10_cuda "${dir}/lib/libc10_cuda.so")
  ullage_import_wheel_lib(torch_cuda "${dir}/lib/libtorch_cuda.so")
  # Headers: the toolkit's, so that host code and nvcc agree; nccl.h only comes in a wheel.
  target_include_directories(ullage::torch SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  find_path(ULLAGE_NCCL_INCLUDE nccl.h PATHS "${site}/nccl/include" NO_DEFAULT_PATH)
  if(ULLAGE_NCCL_INCLUDE)
    set(ULLAGE_WITH_NCCL TRUE)
    target_include_directories(ullage::torch SYSTEM INTERFACE "${ULLAGE_NCCL_INCLUDE}")
    target_compile_definitions(ullage::torch INTERFACE USE_C10D_NCCL)
    file(GLOB nccl "${site}/nccl/lib/libnccl.so.2")
    ullage_import_wheel_lib(nccl "${nccl}")
  endif()
  target_compile_definitions(ullage::torch INTERFACE ULLAGE_WITH_CUDA=1)
  target_link_libraries(ullage::torch INTERFACE
    "$<LINK_LIBRARY:ullage_needed,ullage::torch_cuda>" ullage::c10_cuda ullage::cudart)
endif()

# The binding links this as well; the core library must not.
if(EXISTS "${dir}/lib/libtorch_python.so")
  ullage_import_wheel_lib(torch_python "${dir}/lib/libtorch_python.so")
endif()
message(STATUS "torch ${TORCH_WHEEL_VERSION} (CUDA '${TORCH_WHEEL_CUDA_VERSION}') at ${dir}; "
  "with CUDA: ${ULLAGE_WITH_CUDA}, NCCL: ${ULLAGE_WITH_NCCL}")
