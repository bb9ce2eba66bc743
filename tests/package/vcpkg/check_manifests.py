"""Checks vcpkg's files against the conventions of its registry, as far as that goes without vcpkg.

    python3 check_manifests.py SOURCE_DIR

The order of fields and dependencies is that of `vcpkg format-manifest`.
"""

import json
import pathlib
import re
import sys

FIELDS = ["name", "version", "port-version", "maintainers", "description", "homepage",
          "documentation", "license", "supports", "dependencies", "default-features", "features"]
REQUIRED = {"name", "version", "description", "license", "supports", "dependencies"}
IDENTIFIER = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

complaints = []


def check(right, complaint):
    if not right:
        complaints.append(complaint)


def name_of(dependency):
    return dependency if isinstance(dependency, str) else dependency["name"]


def check_dependencies(where, dependencies):
    names = [name_of(dependency) for dependency in dependencies]
    check(names == sorted(set(names)), f"{where}: dependencies are not sorted, each once: {names}")
    for name in names:
        check(IDENTIFIER.fullmatch(name), f"{where}: {name} is no name of a port")


def check_manifest(path):
    text = path.read_text()
    manifest = json.loads(text)
    check(text == json.dumps(manifest, indent=2) + "\n", f"{path}: is not formatted")
    check(REQUIRED <= set(manifest), f"{path}: lacks {REQUIRED - set(manifest)}")
    known = [field for field in FIELDS if field in manifest]
    check(list(manifest) == known, f"{path}: unknown fields, or not in the usual order")
    check(IDENTIFIER.fullmatch(manifest["name"]), f"{path}: {manifest['name']} is no name of a port")
    check(not manifest["description"].endswith("."), f"{path}: the description ends in a full stop")
    check_dependencies(path, manifest["dependencies"])
    for name, feature in manifest.get("features", {}).items():
        check(IDENTIFIER.fullmatch(name), f"{path}: {name} is no name of a feature")
        check("description" in feature, f"{path}: the feature {name} lacks a description")
        check_dependencies(f"{path}, {name}", feature.get("dependencies", []))
    return manifest


def check_port(directory, manifest):
    dependencies = {name_of(dependency): dependency for dependency in manifest["dependencies"]}
    for helper in ("vcpkg-cmake", "vcpkg-cmake-config"):
        check(dependencies.get(helper) == {"name": helper, "host": True},
              f"{directory}: {helper} must be a host dependency")
    check(directory.name == manifest["name"], f"{directory}: is not called {manifest['name']}")
    portfile = (directory / "portfile.cmake").read_text()
    for call in ("vcpkg_from_github", "vcpkg_cmake_configure", "vcpkg_cmake_install",
                 "vcpkg_cmake_config_fixup", "vcpkg_fixup_pkgconfig", "vcpkg_install_copyright"):
        check(f"{call}(" in portfile, f"{directory}: the portfile doesn't call {call}()")
    for call in ("vcpkg_configure_cmake", "vcpkg_install_cmake", "vcpkg_fixup_cmake_targets"):
        check(f"{call}(" not in portfile, f"{directory}: {call}() is deprecated")
    usage = (directory / "usage").read_text()
    check("find_package(redlease CONFIG REQUIRED" in usage, f"{directory}: usage lacks find_package()")


def main():
    source = pathlib.Path(sys.argv[1])
    port = source / "packaging" / "vcpkg" / "ports" / "redlease"
    ours = check_manifest(source / "vcpkg.json")
    theirs = check_manifest(port / "vcpkg.json")
    check_port(port, theirs)
    for field in ("name", "version", "description", "license", "supports"):
        check(ours[field] == theirs[field], f"{field}: the port's is {theirs[field]}")
    needed = {name_of(dependency) for dependency in ours["dependencies"]}
    check(needed <= {name_of(dependency) for dependency in theirs["dependencies"]},
          f"the port lacks some of {needed}")
    if complaints:
        sys.exit("\n".join(str(complaint) for complaint in complaints))


main()
