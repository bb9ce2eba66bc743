import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir
from conan.errors import ConanInvalidConfiguration

required_conan_version = ">=2.0.9"


class RedleaseRecipe(ConanFile):
    name = "redlease"
    description = "Redis leases for C++20"
    license = "MIT"
    topics = ("redis", "lease", "distributed-lock", "fencing")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "header_only": [True, False]}
    default_options = {"shared": False, "fPIC": True, "header_only": False}
    implements = ["auto_shared_fpic", "auto_header_only"]
    exports_sources = ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "lua/*",
                       "packaging/deb.cmake", "src/*")

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "CMakeLists.txt"))
        self.version = re.search(r"project\(redlease VERSION ([0-9.]+)", text).group(1)

    def layout(self):
        cmake_layout(self)
        # For the editable mode: beside the headers in the source tree there is a generated one.
        self.cpp.build.includedirs = ["generated/include"]

    def requirements(self):
        # Users of the compiled library see the headers of none of them.
        seen = bool(self.options.header_only)
        self.requires("hiredis/[>=1.0 <2]", transitive_headers=seen)
        self.requires("fmt/[>=9 <13]", transitive_headers=seen)
        self.requires("boost/[>=1.74]", transitive_headers=seen, libs=False)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("redlease needs Linux")

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["REDLEASE_BUILD_LIBRARY"] = not self.options.header_only
        for part in ("TESTS", "EXAMPLES", "BENCH"):
            toolchain.cache_variables[f"REDLEASE_BUILD_{part}"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        # Conan makes both of them for each of its users.
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "redlease")
        self.cpp_info.set_property("pkg_config_name", "redlease")
        self.cpp_info.system_libs = ["pthread"]
        if self.options.header_only:
            self.cpp_info.set_property("cmake_target_name", "redlease::header_only")
            self.cpp_info.bindirs = []
            self.cpp_info.libdirs = []
            return
        self.cpp_info.set_property("cmake_target_name", "redlease::redlease")
        self.cpp_info.libs = ["redlease"]
        if self.options.shared:
            self.cpp_info.defines = ["REDLEASE_SHARED"]
