// OpenSSL asks for the processor's features before main(), of every program in which it is: on a
// virtual machine each of these questions traps, and together they cost every start 0.06 ms. Its
// own initialisation, which everything that needs the features passes first, asks once more, so the
// question before main() is left out here.
//
// The linker leads the calls of OPENSSL_cpuid_setup() to this function (--wrap), of which the first
// is the one before main(). Thread: that of the caller; OpenSSL calls it again under its own lock.

extern "C" void __real_OPENSSL_cpuid_setup();

extern "C" void __wrap_OPENSSL_cpuid_setup() {
  static bool is_before_main = true;
  if (is_before_main) {
    is_before_main = false;
    return;
  }
  __real_OPENSSL_cpuid_setup();
}
