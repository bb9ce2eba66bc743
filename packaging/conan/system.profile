include(default)

[settings]
compiler.cppstd=gnu20

# Instead of building what the system has.
[replace_requires]
hiredis/*: hiredis/system
fmt/*: fmt/system
boost/*: boost/system
