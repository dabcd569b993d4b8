# SPDX-License-Identifier: Apache-2.0
# ivy_grpc_static: gRPC as static archives, for a fast start. gRPC's own CMake target is the shared library,
# so the archives are listed by hand. They refer to each other in cycles, hence the group. They are found by name, so
# it does not matter how Abseil was built.
set(IVY_GRPC_ARCHIVES)
foreach(name grpc++ grpc gpr address_sorting re2 upb cares)
  find_library(IVY_ARCHIVE_${name} NAMES lib${name}.a REQUIRED)
  list(APPEND IVY_GRPC_ARCHIVES ${IVY_ARCHIVE_${name}})
endforeach()
foreach(name
    bad_optional_access bad_variant_access base city civil_time cord cord_internal cordz_functions cordz_handle
    cordz_info debugging_internal demangle_internal exponential_biased graphcycles_internal hash hashtablez_sampler
    int128 low_level_hash malloc_internal random_distributions random_internal_platform
    random_internal_pool_urbg random_internal_randen random_internal_randen_hwaes random_internal_randen_hwaes_impl
    random_internal_randen_slow random_internal_seed_material random_seed_gen_exception random_seed_sequences
    raw_hash_set raw_logging_internal spinlock_wait stacktrace status statusor str_format_internal strerror strings
    strings_internal symbolize synchronization throw_delegate time time_zone)
  find_library(IVY_ARCHIVE_absl_${name} NAMES libabsl_${name}.a REQUIRED)
  list(APPEND IVY_GRPC_ARCHIVES ${IVY_ARCHIVE_absl_${name}})
endforeach()
add_library(ivy_grpc_static INTERFACE)
# OpenSSL is inside the group too: gRPC needs it, and a target that links this one may list it earlier.
target_link_libraries(ivy_grpc_static INTERFACE
  -Wl,--start-group ${IVY_GRPC_ARCHIVES}
  # Passed with -Wl, so that CMake does not merge them with the ones that ivy_links lists before the group.
  -Wl,${OPENSSL_SSL_LIBRARY},${OPENSSL_CRYPTO_LIBRARY} -Wl,--end-group
  OpenSSL::SSL OpenSSL::Crypto ${IVY_ZLIB_ARCHIVE} Threads::Threads ${CMAKE_DL_LIBS})
