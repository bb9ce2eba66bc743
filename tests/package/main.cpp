// What a user of the installed package writes. Constructing a client does no I/O.
#include <redlease/redlease.hpp>

int main() { redlease::Client client{"redis://127.0.0.1:6379"}; }
