# SPDX-License-Identifier: Apache-2.0
# ivy_portable: files for packages for every system, in portable/, which replace those of the build: an ivy-agent that
# contains gRPC, OpenSSL and libarchive, and libraries for an older glibc. Not part of the default build:
# scripts/package builds it.
set(IVY_PORTABLE ${CMAKE_BINARY_DIR}/portable)

# Libraries that load with glibc 2.28 (RHEL 8), if Zig is installed, whose linker knows the symbols of each glibc. The
# objects are those of the build, linked against the older glibc; glibc_2_28.cc defines the functions that it lacks.
set(IVY_ZIG ${CMAKE_SOURCE_DIR}/build/zig/bin/python)  # scripts/setup package
set(IVY_OLD_LIBRARIES)
# ivy_library_for_glibc_2_28(TARGET NAME MAP ARCHIVE...): links portable/NAME from the objects of TARGET; the version
# script MAP lists its exported symbols.
function(ivy_library_for_glibc_2_28 target name map)
  set(library ${IVY_PORTABLE}/${name})
  set(archives)
  foreach(archive IN LISTS ARGN)
    list(APPEND archives $<TARGET_FILE:${archive}>)
  endforeach()
  set(of_compiler)
  foreach(archive libstdc++.a libgcc_eh.a libgcc.a)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${archive} OUTPUT_VARIABLE path
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND of_compiler ${path})
  endforeach()
  add_custom_command(OUTPUT ${library}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${IVY_PORTABLE}
    COMMAND ${IVY_ZIG} -m ziglang cc -target ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.2.28 -shared -s -o ${library}
      -Wl,-soname,${name} -Wl,--version-script=${CMAKE_SOURCE_DIR}/${map} -Wl,-z,defs -Wl,--gc-sections
      $<TARGET_OBJECTS:${target}> $<TARGET_OBJECTS:ivy_older_glibc> $<TARGET_OBJECTS:ivy_glibc_2_28>
      ${archives} ${OPENSSL_CRYPTO_LIBRARY} ${of_compiler} -lpthread -ldl -lrt
    DEPENDS $<TARGET_OBJECTS:${target}> ivy_older_glibc ivy_glibc_2_28 ${ARGN} ${map}
    COMMAND_EXPAND_LISTS VERBATIM)
  set(IVY_OLD_LIBRARIES ${IVY_OLD_LIBRARIES} ${library} PARENT_SCOPE)
endfunction()
if(EXISTS ${IVY_ZIG})
  add_library(ivy_glibc_2_28 OBJECT EXCLUDE_FROM_ALL proto/os/glibc_2_28.cc)
  target_link_libraries(ivy_glibc_2_28 PRIVATE ivy_options)
  ivy_library_for_glibc_2_28(ivycomm libivycomm.so.1 comm/exports.map ivy_comm_core ivy_reduce ivy_store_client
    ivy_store_codec ivy_handshake ivy_contract)
  ivy_library_for_glibc_2_28(ivycomm_jax libivycomm_jax.so comm/exports.map ivy_contract)
  ivy_library_for_glibc_2_28(ivy_nccl_profiler libivy_nccl_profiler.so comm/nccl_profiler/exports.map
    ivy_nccl_profiler_core ivy_contract)
endif()

find_library(IVY_LIBARCHIVE_ARCHIVE NAMES libarchive.a)
if(IVY_LIBARCHIVE_ARCHIVE AND IVY_ZSTD_ARCHIVE)
  add_executable(ivy_agent_portable EXCLUDE_FROM_ALL agent/daemon/agent_main.cc)
  target_link_libraries(ivy_agent_portable PRIVATE ivy_agent_core ivy_grpc_static
    ${IVY_LIBARCHIVE_ARCHIVE} ${IVY_ZSTD_ARCHIVE} ${IVY_ZLIB_ARCHIVE})
  target_link_options(ivy_agent_portable PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections)
  set_target_properties(ivy_agent_portable PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${IVY_PORTABLE})
  ivy_for_older_glibc(ivy_agent_portable)
  add_custom_target(ivy_portable DEPENDS
    ivy_agent_portable ${IVY_OLD_LIBRARIES} ivyrun ivyctl ivycomm ivycomm_jax ivycomm_calls)
endif()
