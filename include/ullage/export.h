// Marks what the shared library offers to programs that link it.
#pragma once

#define ULLAGE_API __attribute__((visibility("default")))
