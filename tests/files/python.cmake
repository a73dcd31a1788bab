# The Python whose safetensors and tokenizers packages the tests compare with: the one that the
# torch wheel belongs to. Leaves ULLAGE_TEST_PYTHON.
if(NOT ULLAGE_TEST_PYTHON)
  # Not the real path: a virtual environment is recognised by the path it is started through.
  set(ULLAGE_TEST_PYTHON "${TORCH_WHEEL_DIR}/../../../../bin/python3")
  cmake_path(NORMAL_PATH ULLAGE_TEST_PYTHON)
  if(NOT EXISTS "${ULLAGE_TEST_PYTHON}")
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    set(ULLAGE_TEST_PYTHON "${Python3_EXECUTABLE}")
  endif()
endif()
