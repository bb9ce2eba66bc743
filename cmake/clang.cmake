# Toolchain of the preset `clang`: a preset can name only one compiler, but distributions differ in
# whether clang++ exists without its version. -DCMAKE_CXX_COMPILER overrides the choice.
if(NOT CMAKE_CXX_COMPILER)
  find_program(REDLEASE_CLANGXX REQUIRED NAMES
    clang++ clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
  set(CMAKE_CXX_COMPILER "${REDLEASE_CLANGXX}")
endif()
