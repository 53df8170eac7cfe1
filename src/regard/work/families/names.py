"""Given names that several families share; `#` stands for 1, 2, 3 … without a gap."""

PROJECTION_NAMES = "W_Q W_K W_V b_Q b_K b_V"
ATTENTION_NAMES = f"X Q K V {PROJECTION_NAMES} B rel β"
HEAD_NAMES = f"{PROJECTION_NAMES} W_Q_# W_K_# W_V_# b_Q_# b_K_# b_V_# W_O b_O"
FEED_FORWARD_NAMES = "W_1 b_1 W_2 b_2 W_G b_G"
BLOCK_NAMES = (
    f"{HEAD_NAMES} {FEED_FORWARD_NAMES} gamma_1 beta_1 gamma_2 beta_2 γ_1 β_1 γ_2 β_2 B B_# rel"
)
CROSS_NAMES = "U_Q U_K U_V U_O U_Q_# U_K_# U_V_# b_U_Q b_U_K b_U_V b_U_O b_U_Q_# b_U_K_# b_U_V_#"
