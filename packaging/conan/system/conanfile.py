"""Stands for a library that the system has: its headers and libraries are where the compiler looks.

    conan create packaging/conan/system --name=hiredis --version=system
"""

from conan import ConanFile

# What CMake calls it, and what to link; fmt and Boost are used as headers.
libraries = {
    "hiredis": ("hiredis::hiredis", ["hiredis"], []),
    "fmt": ("fmt::fmt-header-only", [], ["FMT_HEADER_ONLY=1"]),
    "boost": ("Boost::headers", [], []),
}


class SystemLibrary(ConanFile):
    package_type = "unknown"

    def package_info(self):
        target, system_libs, defines = libraries[self.name]
        self.cpp_info.includedirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.bindirs = []
        self.cpp_info.system_libs = system_libs
        self.cpp_info.defines = defines
        if self.name == "boost":
            self.cpp_info.set_property("cmake_file_name", "Boost")
        self.cpp_info.set_property("cmake_target_name", target)
