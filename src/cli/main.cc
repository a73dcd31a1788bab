// The program `ullage`.
#include "cli/commands.h"

int main(int argc, char** argv) {
  return ullage::cli::Main(argc, argv);
}
