# Such as many projects have: it makes no target, and its variables have the names that lie near.
find_path(HIREDIS_INCLUDE_DIR hiredis.h PATH_SUFFIXES hiredis)
find_library(HIREDIS_LIBRARY hiredis)
set(hiredis_FOUND TRUE)
