// The program. Commands are plug-ins (bench/command.h); this only finds the one that was asked for.
#include <stdio.h>

int main(void)
{
    puts("ptbench " PTB_VERSION);
    return 0;
}
