# redlease_embed_lua(DIRECTORY HEADER)
#
# Writes every DIRECTORY/NAME.lua into HEADER as a constant redlease::lua::NAME with its text and
# its SHA1, the name by which EVALSHA calls it. A changed, new or removed script runs this again; the
# header is touched only when its content changes.
function(redlease_embed_lua directory header)
  string(REGEX REPLACE "([][*?])" "[\\1]" pattern "${directory}/")
  file(GLOB files CONFIGURE_DEPENDS "${pattern}*.lua")
  if(NOT files)
    message(FATAL_ERROR "there are no scripts in ${directory}")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})

  set(scripts "")
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME_WE)
    file(READ "${file}" text)
    file(SHA1 "${file}" sha1)
    # The server computes the SHA1 of what is embedded: it must be the file, byte by byte.
    string(SHA1 read_sha1 "${text}")
    if(NOT read_sha1 STREQUAL sha1)
      message(FATAL_ERROR "${file} can't be embedded unchanged: it is not plain text")
    endif()
    string(APPEND scripts
      "\ninline constexpr Script ${name}{\n"
      "    \"${name}\",\n    \"${sha1}\",\n    R\"lua(${text})lua\"};\n")
  endforeach()

  set(content "// Generated from lua/*.lua. Change the scripts, not this file.
#ifndef REDLEASE_STORE_LUA_SCRIPTS_HPP
#define REDLEASE_STORE_LUA_SCRIPTS_HPP

#include <string_view>

namespace redlease::inline v1::lua {

struct Script {
  std::string_view name;
  std::string_view sha1;
  std::string_view text;
};
${scripts}
}  // namespace redlease::inline v1::lua

#endif  // REDLEASE_STORE_LUA_SCRIPTS_HPP")
  # One reference, replaced once: what looks like a reference inside a script stays as it is.
  file(CONFIGURE OUTPUT "${header}" CONTENT "@content@\n" @ONLY)
endfunction()
