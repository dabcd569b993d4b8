// Stands where a package can hold no link, as in a wheel: becomes the program beside it that acts
// by the name under which it is called (one_file.cc; ivy-node's roles).
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { kLongestName = 32 };

int main(int argc, char** argv) {
  char own[PATH_MAX], other[PATH_MAX + kLongestName];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
  if (length <= 0 || argc < 1) {
    fputs("ivyrun: /proc is not mounted, so a program cannot find the others beside it\n", stderr);
    return 127;
  }
  own[length] = '\0';
  char* const name = strrchr(own, '/') + 1;
  const char* const beside = strcmp(name, "ivy-rendezvous") == 0 ? "ivy-node" : "ivyrun-agents";
  snprintf(other, sizeof other, "%.*s%s", (int)(name - own), own, beside);
  argv[0] = name;
  execv(other, argv);
  fprintf(stderr, "%s: %s: %s\n  fix: install ivyrun again, with all of its files\n", name, other,
          strerror(errno));
  return errno == ENOENT ? 127 : 126;
}
