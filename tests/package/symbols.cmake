# Compares what the shared library exports with the list in the repository.
#   cmake -DNM=nm -DLIBRARY=libredlease.so -DEXPECTED=symbols.txt -DFOUND=new.txt -P symbols.cmake
# Inline functions don't count: whether they are there is up to the optimiser.
cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND "${NM}" --dynamic --defined-only --demangle --format=posix "${LIBRARY}"
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)

# As people write it.
string(REPLACE "[abi:cxx11]" "" text "${text}")
string(REGEX REPLACE "std::(__cxx11::)?basic_string<char, std::char_traits<char>, std::allocator<char> ?>"
  "std::string" text "${text}")
string(REGEX REPLACE "std::basic_string_view<char, std::char_traits<char> ?>"
  "std::string_view" text "${text}")
string(REGEX REPLACE "std::vector<std::string, std::allocator<std::string ?> ?>"
  "std::vector<std::string>" text "${text}")
string(REGEX REPLACE "std::unique_ptr<([a-zA-Z0-9_:]+), std::default_delete<[a-zA-Z0-9_:]+ ?> ?>"
  "std::unique_ptr<\\1>" text "${text}")

# "NAME TYPE VALUE SIZE" a line. Brackets would make CMake take several lines for one element.
string(REGEX REPLACE "[][;]" "?" text "${text}")
string(REPLACE "\n" ";" lines "${text}")
set(symbols "")
set(foreign "")
foreach(line IN LISTS lines)
  if(NOT line MATCHES "^(.+) ([A-Za-z]) [0-9a-f]+( [0-9a-f]+)?$")
    continue()
  endif()
  set(name "${CMAKE_MATCH_1}")
  set(type "${CMAKE_MATCH_2}")
  if(NOT name MATCHES "^((typeinfo|typeinfo name|vtable|VTT) for )?redlease::")
    string(APPEND foreign "  ${name}\n")
  elseif(NOT type MATCHES "^[Wu]$")
    list(APPEND symbols "${name}")
  endif()
endforeach()
list(SORT symbols)
list(REMOVE_DUPLICATES symbols)
list(JOIN symbols "\n" found)
file(WRITE "${FOUND}" "${found}\n")

file(STRINGS "${EXPECTED}" expected)
set(changes "")
foreach(symbol IN LISTS expected)
  if(NOT symbol IN_LIST symbols)
    string(APPEND changes "- ${symbol}\n")
  endif()
endforeach()
foreach(symbol IN LISTS symbols)
  if(NOT symbol IN_LIST expected)
    string(APPEND changes "+ ${symbol}\n")
  endif()
endforeach()

if(NOT symbols)
  message(FATAL_ERROR "${LIBRARY} exports nothing")
endif()
if(foreign)
  message(NOTICE "${foreign}")
  message(FATAL_ERROR "${LIBRARY} exports what isn't redlease's.")
endif()
if(changes)
  message(NOTICE "${changes}")
  message(FATAL_ERROR "The exported symbols have changed (- gone, + new). What is gone or changed "
    "breaks the ABI: it takes a new minor version before 1.0, a new major one after it. If that is "
    "meant:\n  cp ${FOUND} ${EXPECTED}")
endif()
